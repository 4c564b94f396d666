//! Which build of the program this is; `build.rs` beside the manifest finds it out.

/// Version, commit (`unknown` where it was built without a repository), profile, and what it was
/// built for.
pub(crate) const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("RETAKE_COMMIT"),
    ", ",
    env!("RETAKE_PROFILE"),
    ", ",
    env!("RETAKE_TARGET"),
    ")"
);
