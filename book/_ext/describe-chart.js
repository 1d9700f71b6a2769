// Screen readers get a chart as one picture. Its text ends with the numbers in it as they are now.
globalThis.describeChart = ({view}) => {
  const chart = view.container(), said = chart.ariaLabel;
  const describe = () => {
    const numbers = chart.querySelectorAll(".mark-text.role-mark [aria-label]");
    const label = [said, ...[...numbers].map(of => of.ariaLabel)].join(" ");
    Object.assign(chart.querySelector("svg"), {role: "img", ariaLabel: label});
  };
  for (const of of ["role", "aria-label", "aria-roledescription"]) chart.removeAttribute(of);
  chart.addEventListener("input", () => view.runAsync().then(describe));
  describe();
};
