/**
 * Watches an incident appear in a real browser, without a reload.
 *
 * node watch-incident.mjs URL TOKEN FOLDER — prints `watching` when the empty list is shown, then one
 * JSON object: what the incident page said, the checks made on it and the screenshots written.
 */
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [url, token, folder] = process.argv.slice(2);
const APPEARS_MS = 120_000;
const CHROMIUM = process.env.PACELINE_CHROMIUM ?? "/usr/bin/chromium";
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
const SCREENS = [
  { name: "incident-light-wide", theme: "light", width: 1440, height: 900 },
  { name: "incident-dark-wide", theme: "dark", width: 1440, height: 900 },
  { name: "incident-light-narrow", theme: "light", width: 390, height: 844 },
  { name: "incident-dark-narrow", theme: "dark", width: 390, height: 844 },
];

const axeSource = readFileSync(createRequire(import.meta.url).resolve("axe-core"), "utf8");
const browser = await chromium.launch({ executablePath: CHROMIUM, args: FLAGS });
try {
  const page = await browser.newPage({ viewport: { width: 1440, height: 900 } });
  const problems = [];
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("console", (message) => {
    // Before signing in, "who am I" is answered 401, which the browser logs by itself.
    const isExpected = message.location().url.endsWith("/v1/me");
    if (message.type() === "error" && !isExpected) problems.push(message.text());
  });
  await signIn(page);
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
  const screens = await takeScreens(page);
  const violations = await checkAccess(page);
  await page.keyboard.press("a");
  await page.locator("header").getByText(/acknowledged by/).waitFor();
  await page.keyboard.press("2");
  await page.getByRole("heading", { name: "Jobs", level: 1 }).waitFor();
  process.stdout.write(`${JSON.stringify({ sameLoad, summary, screens, violations, problems })}\n`);
} finally {
  await browser.close();
}

async function signIn(page) {
  await page.goto(url);
  await page.getByLabel("Access token").fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Incidents", level: 1 }).waitFor();
  await page.getByText("live", { exact: true }).waitFor();
}

async function takeScreens(page) {
  const files = [];
  for (const screen of SCREENS) {
    await page.setViewportSize({ width: screen.width, height: screen.height });
    await page.getByLabel("Theme").selectOption(screen.theme);
    await page.locator(`html[data-theme="${screen.theme}"]`).waitFor();
    const overflow = await page.evaluate(
      () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
    );
    const path = join(folder, `${screen.name}.png`);
    await page.screenshot({ path, fullPage: true });
    files.push({ path, overflow });
  }
  return files;
}

/** Serious and critical findings of axe in both themes, as `theme rule: element`. */
async function checkAccess(page) {
  await page.setViewportSize({ width: 1440, height: 900 });
  await page.evaluate(axeSource);
  const found = [];
  for (const theme of ["light", "dark"]) {
    await page.getByLabel("Theme").selectOption(theme);
    await page.locator(`html[data-theme="${theme}"]`).waitFor();
    const { violations } = await page.evaluate(() => window.axe.run());
    for (const violation of violations) {
      if (!["serious", "critical"].includes(violation.impact)) continue;
      for (const node of violation.nodes) found.push(`${theme} ${violation.id}: ${node.target}`);
    }
  }
  return found;
}
