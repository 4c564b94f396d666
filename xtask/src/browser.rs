//! The browser for the tests of the page: Debian's Chromium and its WebDriver.

use crate::test::{apt, on_path};

const PACKAGES: [(&str, &str); 2] = [("chromium", "chromium"), ("chromedriver", "chromium-driver")];

pub(crate) fn install() -> Result<(), String> {
    let missing: Vec<&str> = PACKAGES
        .iter()
        .filter(|(program, _)| !on_path(program))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    // SAFETY: no arguments, no failure.
    let root = unsafe { libc::geteuid() } == 0;
    if !root || !on_path("apt-get") {
        return Err(format!("install these first: {}", missing.join(" ")));
    }
    println!("installing {}", missing.join(" "));
    apt(&["update", "-qq"])?;
    // Without a font no text is drawn.
    let fonts = ["fonts-dejavu-core"];
    apt(&[&["install", "-y", "-qq", "--no-install-recommends"], &missing[..], &fonts].concat())
}
