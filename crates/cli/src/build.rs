//! The build of this program; `build.rs` beside the manifest sets these values.

/// Version, commit (`unknown` if built without a repository), profile and target.
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
