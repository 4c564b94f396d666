//! Links libgcc into the program: finding and relocating the shared one would take a quarter of
//! the time a short `retake exec` takes in all.

#[expect(clippy::print_stdout, reason = "how a build script speaks to cargo")]
fn main() {
    println!("cargo::rustc-link-arg-bins=-static-libgcc");
    println!("cargo::rerun-if-changed=build.rs");
}
