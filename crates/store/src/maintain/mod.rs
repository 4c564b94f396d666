//! Keeping the record whole and small: recovery, compression, erasure, verification, repair.

pub(crate) mod compact;
pub(crate) mod disk_use;
pub(crate) mod doctor;
pub(crate) mod erase;
pub(crate) mod erased_words;
pub(crate) mod obsolete_files;
pub(crate) mod output_rows;
pub(crate) mod recover;
pub(crate) mod relocate;
pub(crate) mod repair;
pub(crate) mod salvage;
pub(crate) mod verify;
