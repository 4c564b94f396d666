//! One recogniser per framework.

mod cargo;
mod ctest;
mod dotnet;
mod go;
mod jest;
mod junit;
mod mocha;
mod nextest;
pub(super) mod node;
mod phpunit;
mod pytest;
mod pytest_lines;
mod rspec;
mod surefire;
mod tap;
mod unittest;
mod vitest;

use super::recogniser::Recogniser;

/// A recogniser, and the one or two first visible bytes of the lines that it needs.
type Entry = (Box<dyn Recogniser>, &'static [&'static [u8]]);

/// All of them. Those that claim a test's output for themselves come first.
pub(super) fn all() -> Vec<Entry> {
    vec![
        (Box::<nextest::Nextest>::default(), nextest::BEGINNINGS),
        (Box::<cargo::Cargo>::default(), cargo::BEGINNINGS),
        (Box::<pytest::Pytest>::default(), pytest::BEGINNINGS),
        (Box::<unittest::Unittest>::default(), unittest::BEGINNINGS),
        (Box::<jest::Jest>::default(), jest::BEGINNINGS),
        (Box::<vitest::Vitest>::default(), vitest::BEGINNINGS),
        (Box::<mocha::Mocha>::default(), mocha::BEGINNINGS),
        (Box::<node::Node>::default(), node::BEGINNINGS),
        (Box::<tap::Tap>::default(), tap::BEGINNINGS),
        (Box::<go::Go>::default(), go::BEGINNINGS),
        (Box::<junit::Junit>::default(), junit::BEGINNINGS),
        (Box::<dotnet::Dotnet>::default(), dotnet::BEGINNINGS),
        (Box::<rspec::Rspec>::default(), rspec::BEGINNINGS),
        (Box::<phpunit::Phpunit>::default(), phpunit::BEGINNINGS),
        (Box::<ctest::Ctest>::default(), ctest::BEGINNINGS),
        (Box::<surefire::Surefire>::default(), surefire::BEGINNINGS),
    ]
}
