// Opens pages in Chromium, in both themes and two widths, and prints as JSON what is wrong with each and how long it took.
const { chromium } = require("playwright-core");
const fs = require("fs");

const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
  "--disable-sync", "--no-first-run"];
const OWN = /^(file:|data:|blob:|http:\/\/127\.0\.0\.1:)/;

async function check(browser, address, width, theme, shots) {
  const context = await browser.newContext({ viewport: { width, height: 900 }, bypassCSP: true });
  const page = await context.newPage();
  const wrong = [];
  page.on("console", (message) => { if (["error", "warning"].includes(message.type())) wrong.push(message.text()); });
  page.on("pageerror", (error) => wrong.push(String(error)));
  page.on("request", (request) => { if (!OWN.test(request.url())) wrong.push(`asks ${request.url()}`); });
  const start = Date.now();
  await page.goto(`${address}${address.includes("?") ? "&" : "?"}theme=${theme}`, { waitUntil: "load" });
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  const milliseconds = Date.now() - start;
  if (address.startsWith("http")) await page.waitForSelector("#answer h1", { timeout: 120000 });
  await page.evaluate(async () => {
    for (let y = 0; y < document.body.scrollHeight; y += 500) {
      scrollTo({ top: y, behavior: "instant" });
      await new Promise((done) => setTimeout(done, 80));
    }
    scrollTo({ top: 0, behavior: "instant" });
  });
  const empty = await page.evaluate(() => [...document.querySelectorAll(".chart[id], .widget")].filter((e) => !e.children.length).map((e) => e.id));
  wrong.push(...empty.map((id) => `${id} is not drawn`));
  const canvas = await page.$(".timeline canvas");
  if (canvas) {
    const before = await canvas.evaluate((each) => each.toDataURL());
    await canvas.focus();
    await page.keyboard.press("+");
    if (before === (await canvas.evaluate((each) => each.toDataURL()))) wrong.push("the timeline does not zoom by key");
  }
  await page.evaluate(fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8"));
  const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
  wrong.push(...violations.filter((each) => ["serious", "critical"].includes(each.impact)).map((each) => `axe: ${each.id} (${each.nodes[0].html.slice(0, 100)})`));
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  if (over > 0) wrong.push(`is ${over} pixels too wide`);
  if (shots) await page.screenshot({ path: `${shots}/${address.replace(/\W+/g, "-").slice(-40)}-${width}-${theme}.png`, fullPage: true });
  await context.close();
  return { address, width, theme, milliseconds, wrong };
}

(async () => {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: FLAGS });
  const found = [];
  for (const address of process.argv.slice(2)) {
    for (const width of [1280, 400]) for (const theme of ["light", "dark"]) found.push(await check(browser, address, width, theme, process.env.SHOTS));
  }
  await browser.close();
  console.log(JSON.stringify(found));
})();
