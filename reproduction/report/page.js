"use strict";
(() => {
  const form = document.getElementById("filter");
  const shown = document.getElementById("shown");
  const { words, verdict, experiment } = form.elements;
  const sections = [...document.querySelectorAll(".experiment")].map((node) => ({
    node,
    groups: [...node.querySelectorAll("details.claims")].map((details) => ({
      details,
      rows: [...details.querySelectorAll("tr[data-verdict]")].map((row) => ({
        row,
        text: (node.dataset.words + " " + row.textContent).toLowerCase(),
      })),
    })),
  }));
  const total = document.querySelectorAll("tr[data-verdict]").length;
  const unfolded = new Set(); // what the filter has unfolded, to be folded when it is cleared

  function apply() {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const active = wanted.length > 0 || verdict.value !== "" || experiment.value !== "";
    let claims = 0;
    let experiments = 0;
    for (const { node, groups } of sections) {
      let inSection = 0;
      for (const { details, rows } of groups) {
        let inGroup = 0;
        for (const { row, text } of rows) {
          const fits =
            (verdict.value === "" || row.dataset.verdict === verdict.value) &&
            (experiment.value === "" || node.id === experiment.value) &&
            wanted.every((word) => text.includes(word));
          row.hidden = !fits;
          inGroup += fits;
        }
        details.hidden = inGroup === 0;
        if (active && inGroup > 0 && !details.open) {
          details.open = true;
          unfolded.add(details);
        }
        inSection += inGroup;
      }
      node.hidden = active && inSection === 0;
      experiments += inSection > 0;
      claims += inSection;
    }
    if (!active) {
      for (const details of unfolded) details.open = false;
      unfolded.clear();
    }
    shown.textContent = active
      ? `${claims} of ${total} claims shown, in ${experiments} of ${sections.length} experiments`
      : `All ${total} claims of ${sections.length} experiments are shown; those that hold are folded.`;
  }

  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(apply)); // the fields are empty only afterwards
  window.addEventListener("hashchange", () => {
    const target = document.querySelector(":target");
    if (target && target.closest("[hidden]")) {
      form.reset();
      setTimeout(() => target.scrollIntoView());
    }
  });
  form.hidden = false;
  shown.hidden = false;
  apply();
})();
