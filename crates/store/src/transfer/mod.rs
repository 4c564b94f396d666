//! Moves runs between records: export, import, bundles, runs reported by a sandbox, result files,
//! and copies of the ledger.

pub(crate) mod audit_record;
pub(crate) mod bundle;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod ledger_copy;
pub(crate) mod reported;
pub(crate) mod result_file;
pub(crate) mod take_over;
