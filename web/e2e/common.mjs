/** What the browser programs share: the browser itself, signing in, screenshots, accessibility. */
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";

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
  { name: "light-wide", theme: "light", width: 1440, height: 900 },
  { name: "dark-wide", theme: "dark", width: 1440, height: 900 },
  { name: "light-narrow", theme: "light", width: 390, height: 844 },
  { name: "dark-narrow", theme: "dark", width: 390, height: 844 },
];

const axeSource = readFileSync(createRequire(import.meta.url).resolve("axe-core"), "utf8");

/** A page in a new browser, and the list of what goes wrong on it. */
export async function openPage() {
  const browser = await chromium.launch({ executablePath: CHROMIUM, args: FLAGS });
  const page = await browser.newPage({ viewport: { width: 1440, height: 900 } });
  const problems = [];
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("console", (message) => {
    // Before signing in, "who am I" is answered 401, which the browser logs by itself.
    const isExpected = message.location().url.endsWith("/v1/me");
    if (message.type() === "error" && !isExpected) problems.push(message.text());
  });
  return { browser, page, problems };
}

export async function signIn(page, url, token) {
  await page.goto(url);
  await page.getByLabel("Access token").fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Incidents", level: 1 }).waitFor();
  await page.getByText("live", { exact: true }).waitFor();
}

/** Screenshots of the whole page in both themes, wide and narrow; `overflow` is what scrolls sideways. */
export async function takeScreens(page, folder, name) {
  const files = [];
  for (const screen of SCREENS) {
    await page.setViewportSize({ width: screen.width, height: screen.height });
    await page.getByLabel("Theme").selectOption(screen.theme);
    await page.locator(`html[data-theme="${screen.theme}"]`).waitFor();
    const overflow = await page.evaluate(
      () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
    );
    const path = join(folder, `${name}-${screen.name}.png`);
    await page.screenshot({ path, fullPage: true });
    files.push({ path, overflow });
  }
  return files;
}

/** Serious and critical findings of axe in both themes, as `theme rule: element`. */
export async function checkAccess(page) {
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
