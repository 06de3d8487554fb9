// Regions that scroll sideways can be reached and scrolled with the keyboard.
document.addEventListener("DOMContentLoaded", () => {
  for (const region of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code, .highlight code")) {
    if (region.scrollWidth > region.clientWidth) region.tabIndex = 0
  }
})
