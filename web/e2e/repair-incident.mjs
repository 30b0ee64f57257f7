/**
 * Approves a proposal on the incident page and watches what comes of it, without a reload.
 *
 * node repair-incident.mjs URL TOKEN FOLDER INCIDENT JOB — prints what is proposed, then `approved` once the
 * page shows that, then one JSON object: how it ended, the phases, the checks made and the screenshots.
 */
import { checkAccess, openPage, signIn, takeScreens } from "./common.mjs";

const [url, token, folder, incident, job] = process.argv.slice(2);
const { browser, page, problems } = await openPage();
const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
try {
  await signIn(page, url, token);
  await page.goto(`${url}/incidents/${incident}`);
  await page.evaluate(() => {
    window.markerOfThisLoad = true;
  });
  const proposal = page.getByRole("region", { name: "Proposal" });
  await proposal.getByRole("list", { name: "Preconditions" }).waitFor();
  const screens = await takeScreens(page, folder, "repair-proposed");
  const violations = await checkAccess(page);
  const checks = await proposal.getByRole("list", { name: "Preconditions" }).innerText();
  const places = await proposal.getByRole("list", { name: "Who leaves and who joins" }).innerText();
  await proposal.getByRole("button", { name: "Approve…" }).click();
  await proposal.getByLabel("Reason, for the audit log").fill("seen, go ahead");
  screens.push(...(await takeScreens(page, folder, "repair-approving")));
  violations.push(...(await checkAccess(page)));
  await proposal.getByRole("button", { name: "Approve", exact: true }).click();
  await proposal.getByText("approved", { exact: true }).waitFor();
  say("approved");
  const repair = page.getByRole("region", { name: "Repair" });
  await repair.getByText(/^Resumed at step/).waitFor({ timeout: 120_000 });
  const ended = await repair.getByRole("status").innerText();
  const phases = await repair.getByRole("list", { name: /Phases of generation/ }).innerText();
  const sameLoad = await page.evaluate(() => window.markerOfThisLoad === true);
  screens.push(...(await takeScreens(page, folder, "repair-happened")));
  violations.push(...(await checkAccess(page)));
  await page.goto(`${url}/jobs/${job}`);
  await page.getByRole("table", { name: "Standbys" }).waitFor();
  await page.getByRole("button", { name: "Stop repair of this job…" }).click();
  await page.getByLabel("Reason, for the audit log").fill("maintenance");
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await page.getByText(/^on for this job/).waitFor();
  screens.push(...(await takeScreens(page, folder, "repair-job")));
  violations.push(...(await checkAccess(page)));
  say({ checks, places, ended, phases, sameLoad, screens, violations, problems });
} finally {
  await browser.close();
}
