// Builds the one bundle of the widgets: ccl_lab/widgets/static/ccl_lab.js (ESM, es2022, minified).
//
// Is: the only producer of that committed file. `--check` compares instead of writing; `--out FILE` writes elsewhere.
// `--tests` bundles tests/*.test.ts for node. Invariant: the same sources give the same bytes.
import { build } from "esbuild";
import { readFileSync, readdirSync, existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "..", "ccl_lab", "widgets", "static", "ccl_lab.js");
const args = process.argv.slice(2);
const common = { bundle: true, format: "esm", target: "es2022", legalComments: "none", logLevel: "warning", charset: "utf8" };

if (args.includes("--tests")) {
  const tests = readdirSync(join(here, "tests")).filter((name) => name.endsWith(".test.ts"));
  await build({
    ...common,
    entryPoints: tests.map((name) => join(here, "tests", name)),
    outdir: join(here, "build", "tests"),
    outExtension: { ".js": ".mjs" },
    platform: "node",
  });
} else {
  const result = await build({
    ...common,
    entryPoints: [join(here, "src", "index.ts")],
    minify: true,
    write: false,
    loader: { ".css": "text" },
    banner: { js: "/* ccl_lab widgets. Built by widgets/build.mjs; do not edit. Apache-2.0 */" },
  });
  const bytes = result.outputFiles[0].contents;
  if (args.includes("--check")) {
    const same = existsSync(target) && Buffer.compare(readFileSync(target), Buffer.from(bytes)) === 0;
    if (!same) console.error("stale: ccl_lab/widgets/static/ccl_lab.js; run `npm run build` in widgets/");
    process.exit(same ? 0 : 1);
  }
  const at = args.indexOf("--out");
  const { writeFileSync } = await import("node:fs");
  writeFileSync(at >= 0 ? args[at + 1] : target, bytes);
  console.log(`${bytes.length} bytes`);
}
