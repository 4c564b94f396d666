//! Real browsers for the tests: several versions of Chromium from npm, in the layout of a cache of
//! @puppeteer/browsers.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::test::succeed;

/// The variable with the path of the cache, for tests.
pub(crate) const VARIABLE: &str = "RETAKE_CHROMIUMS";

/// Versions of the package @sparticuz/chromium, and the Chromium in each. `Promise.withResolvers`
/// appeared between the second and the third.
const VERSIONS: [(&str, &str); 4] = [
    ("116.0.0", "116.0.5845.0"),
    ("118.0.0", "118.0.5993.0"),
    ("119.0.2", "119.0.6045.0"),
    ("121.0.0", "121.0.6167.0"),
];

/// The program is compressed; node, for which the package is made, can unpack it.
const UNPACK: &str = "const [from, to] = process.argv.slice(1);
require('fs').writeFileSync(to, require('zlib').brotliDecompressSync(require('fs').readFileSync(from)), {mode: 0o755});";

/// Installs missing versions; `None` on machines without such a package.
pub(crate) fn install(target: &Path) -> Result<Option<PathBuf>, String> {
    if std::env::consts::ARCH != "x86_64" {
        println!(
            "no Chromium for {}: tests with real browsers are skipped",
            std::env::consts::ARCH
        );
        return Ok(None);
    }
    let cache = target.join("chromiums");
    std::thread::scope(|scope| {
        let all = VERSIONS.map(|(package, version)| {
            let cache = &cache;
            scope.spawn(move || one(cache, package, version))
        });
        all.into_iter().try_for_each(|one| one.join().map_err(|_| "a thread panicked")?)
    })?;
    Ok(Some(cache))
}

fn one(cache: &Path, package: &str, version: &str) -> Result<(), String> {
    let place = cache.join("chrome-headless-shell").join(format!("linux-{version}"));
    if place.is_dir() {
        return Ok(());
    }
    println!("installing Chromium {version}");
    // Either complete under its name or missing.
    let aside = cache.join(format!(".{version}"));
    let unpacked = aside.join("unpacked");
    let directory = unpacked.join("chrome-headless-shell-linux64");
    let text = |error: std::io::Error| error.to_string();
    std::fs::create_dir_all(&directory).map_err(text)?;
    let pack = ["pack", "--silent", "--pack-destination"];
    let name = format!("@sparticuz/chromium@{package}");
    let quiet = std::process::Stdio::null;
    succeed(Command::new("npm").args(pack).arg(&aside).arg(&name).stdout(quiet()))?;
    let archive = aside.join(format!("sparticuz-chromium-{package}.tgz"));
    let member = "package/bin/chromium.br";
    succeed(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(&aside).arg(member))?;
    let program = directory.join("chrome-headless-shell");
    succeed(Command::new("node").args(["-e", UNPACK]).arg(aside.join(member)).arg(&program))?;
    std::fs::create_dir_all(cache.join("chrome-headless-shell")).map_err(text)?;
    std::fs::rename(&unpacked, &place).map_err(text)?;
    std::fs::remove_dir_all(&aside).map_err(text)
}
