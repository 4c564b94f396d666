//! What every other module builds on: the open store, its directory, its locks and its formats.

pub(crate) mod arrival_order;
pub(crate) mod block_hashes;
pub(crate) mod checkpoint;
pub(crate) mod crash_points;
pub(crate) mod dir;
pub(crate) mod effect_rows;
pub(crate) mod error;
pub(crate) mod file_lock;
pub(crate) mod imports;
pub(crate) mod json_without;
pub(crate) mod ledger;
pub(crate) mod live_file;
pub(crate) mod moved_store;
pub(crate) mod output_damage;
pub(crate) mod projection;
pub(crate) mod reserve;
pub(crate) mod schema;
pub(crate) mod store;
pub(crate) mod write_lock;
pub(crate) mod zstd_frames;
