//! What may be left of a recording after a crash: pure, no I/O, the same answer every time.

mod allow;
mod atom;
mod choice;
mod digest;
mod explain;
mod explore;
mod ext4;
mod key;
mod machine;
mod page;
mod pending;
mod posix;
mod profile;
mod radix;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod script;
mod sentence;
mod shown;
mod story;
mod tree;
mod trial;

pub use allow::allows;
pub use atom::{Part, Torn};
pub use choice::{Class, SECTOR};
pub use explain::{Explainer, Finding};
pub use explore::{BadGlob, Coverage, Options, State, States, rebuild};
pub use key::{BadKey, Kept, StateKey};
pub use machine::Point;
pub use profile::{Model, UnknownModel};
pub use shown::{quoted, shown};
pub use tree::{FileView, Found, Thing, Tree};
