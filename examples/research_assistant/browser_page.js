// What the browser agent does inside a page: [action, ...arguments] in, what a model may be told out.
([action, ...given]) => {
    const visible = (selector) => [...document.querySelectorAll(selector)].filter((e) => e.checkVisibility());

    const firstText = (...texts) =>
        (texts.find((t) => t?.trim()) ?? "").replace(/\s+/g, " ").trim().slice(0, 80).toWellFormed();

    // A form that is sent by GET asks for a page and changes nothing. Its attributes are asked for by name, because a
    // field that is called "action" or "method" hides the property.
    const searchField = () =>
        visible("form input[type=search], form input[type=text], form input:not([type]), form textarea").find(
            (e) => e.form && /^(get)?$/i.test(e.form.getAttribute("method") ?? ""),
        );

    // The text from one character on, the links in the order in which they are numbered, and the search field.
    const look = (from, characters, links) => {
        const anchors = visible("a[href]").filter((a) => /^https?:$/.test(a.protocol));
        const text = document.body?.innerText ?? "";
        const field = searchField();
        return {
            title: firstText(document.title),
            text: text.slice(from, from + characters).toWellFormed().trim(),
            length: text.length,
            links: anchors.slice(0, links).map((a) => [firstText(a.innerText, a.title, a.ariaLabel, a.href), a.href]),
            more_links: Math.max(0, anchors.length - links),
            search_field: field
                ? firstText(field.labels?.[0]?.innerText, field.ariaLabel, field.placeholder, field.name, "search")
                : null,
        };
    };

    // Fills the search field in and sends its form. Gives the address that this leads to, empty where the page stays.
    const search = (words) => {
        const field = searchField();
        if (!field) throw new Error("this page has no search field");
        field.value = words;
        for (const kind of ["input", "change"]) field.dispatchEvent(new Event(kind, {bubbles: true}));
        let address = "";
        const send = (event) => {
            if (event.defaultPrevented) return; // the page's own script has taken it
            event.preventDefault();
            const url = new URL(field.form.getAttribute("action") ?? "", document.baseURI);
            url.search = new URLSearchParams(new FormData(field.form));
            address = url.href;
        };
        window.addEventListener("submit", send);
        HTMLFormElement.prototype.requestSubmit.call(field.form);
        window.removeEventListener("submit", send);
        return address;
    };

    return {look, search}[action](...given);
}
