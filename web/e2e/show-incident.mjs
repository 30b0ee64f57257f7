/**
 * Shows one incident that is there already, and downloads its bundle.
 *
 * node show-incident.mjs URL TOKEN FOLDER INCIDENT NAME — prints one JSON object: what the page says of the
 * nodes' logs, the file that was saved, the checks and the screenshots.
 */
import { join } from "node:path";
import { checkAccess, openPage, signIn, takeScreens } from "./common.mjs";

const [url, token, folder, incident, name] = process.argv.slice(2);
const { browser, page, problems } = await openPage();
try {
  await signIn(page, url, token);
  await page.goto(`${url}/incidents/${incident}`);
  await page.getByRole("heading", { name: "What happened" }).waitFor();
  const logs = page.getByRole("region", { name: "Logs from the nodes" });
  await logs.waitFor();
  const words = await logs.getByRole("paragraph").innerText();
  const cells = await logs.getByRole("cell").allInnerTexts();
  const saving = page.waitForEvent("download");
  await page.getByRole("link", { name: "Download bundle" }).click();
  const download = await saving;
  const file = join(folder, download.suggestedFilename());
  await download.saveAs(file);
  const screens = await takeScreens(page, folder, name);
  const violations = await checkAccess(page);
  process.stdout.write(`${JSON.stringify({ words, cells, file, screens, violations, problems })}\n`);
} finally {
  await browser.close();
}
