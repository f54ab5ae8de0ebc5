// Runs before anything is painted, so that a chosen theme does not flash.
try {
  const theme = localStorage.getItem("holdfast.theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Without storage the system decides.
}
