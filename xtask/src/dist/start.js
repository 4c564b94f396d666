#!/usr/bin/env node
// Starts the program of the package for this kind of machine, and ends as it ends.
"use strict";

const { spawn } = require("node:child_process");

const name = `@retake/${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/bin/retake`);
} catch {
  console.error(
    `retake: the package ${name} is not installed. retake runs on Linux (x64); ` +
      "install without --omit=optional there.",
  );
  process.exit(1);
}
const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
// A terminal sends its signals to both; others are passed on. Only the program decides when to end.
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"]) {
  process.on(signal, () => {
    if (!process.stdin.isTTY) child.kill(signal);
  });
}
child.on("error", (error) => {
  console.error(`retake: ${program} could not be started: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => {
  if (signal === null) process.exit(code);
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
});
