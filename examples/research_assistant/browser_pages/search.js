// Finds the pages of this site that have all the words asked for.
const pages = [
    ["parts-1.html", "Parts, page 1 of 3", "lever microswitch long short roller sealed repeatability life price"],
    ["parts-2.html", "Parts, page 2 of 3", "hall sensor magnet optical fork open dust cover repeatability life price"],
    ["parts-3.html", "Parts, page 3 of 3", "inductive probe steel aluminium precision plunger switch repeatability life price"],
    ["wire-test.html", "The wire test", "endstop wire unplugged broken normally closed open contacts mill stop safe wiring"],
    ["how-we-measure.html", "How we measure repeatability", "measure repeatability approach speed glass scale scatter"],
    ["dust.html", "Dust in optical forks", "dust optical fork cover router wood beech hours"],
];
const asked = new URLSearchParams(location.search).get("q")?.trim() ?? "";
if (asked) {
    const words = asked.toLowerCase().split(/\s+/);
    const hits = pages.filter(([, title, about]) => words.every((word) => `${title} ${about}`.toLowerCase().includes(word)));
    document.getElementById("q").value = asked;
    document.getElementById("found").textContent = `${hits.length} of ${pages.length} pages have: ${asked}`;
    for (const [address, title] of hits) {
        const item = document.createElement("li");
        const link = item.appendChild(document.createElement("a"));
        link.href = address;
        link.textContent = title;
        document.getElementById("hits").append(item);
    }
}
