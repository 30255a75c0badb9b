// Before the first paint: the theme that the reader has chosen.
document.documentElement.dataset.theme = localStorage.getItem("coterie.theme") ?? "auto";
