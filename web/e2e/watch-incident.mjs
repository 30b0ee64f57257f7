/**
 * Watches an incident appear in a real browser, without a reload.
 *
 * node watch-incident.mjs URL TOKEN FOLDER — prints `watching` when the empty list is shown, then one
 * JSON object: what the incident page said, the checks made on it and the screenshots written.
 */
import { checkAccess, openPage, signIn, takeScreens } from "./common.mjs";

const [url, token, folder] = process.argv.slice(2);
const APPEARS_MS = 120_000;
const { browser, page, problems } = await openPage();
try {
  await signIn(page, url, token);
  await page.evaluate(() => {
    window.markerOfThisLoad = true;
  });
  process.stdout.write("watching\n");
  const link = page.getByRole("link", { name: /^INC-\d+$/ }).first();
  await link.waitFor({ timeout: APPEARS_MS });
  const sameLoad = await page.evaluate(() => window.markerOfThisLoad === true);
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "What happened" }).waitFor();
  await page.getByRole("application", { name: /Rank map/ }).waitFor();
  const summary = await page.getByRole("heading", { level: 1 }).innerText();
  const screens = await takeScreens(page, folder, "incident");
  const violations = await checkAccess(page);
  await page.keyboard.press("a");
  await page.locator("header").getByText(/acknowledged by/).waitFor();
  await page.keyboard.press("2");
  await page.getByRole("heading", { name: "Jobs", level: 1 }).waitFor();
  process.stdout.write(`${JSON.stringify({ sameLoad, summary, screens, violations, problems })}\n`);
} finally {
  await browser.close();
}
