//! Writes the file of a bundle.

use std::path::{Path, PathBuf};

use retake_store::{BundleHeader, Store};
use retake_types::RunId;

use crate::Failure;

/// Whether a file can be written there. Checked before the work whose result it will hold.
pub(crate) fn check_place(path: &Path) -> Result<(), Failure> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let problem = match (directory.metadata(), path.metadata()) {
        (Err(source), _) => source,
        (Ok(above), _) if !above.is_dir() => std::io::ErrorKind::NotADirectory.into(),
        (Ok(_), Ok(there)) if there.is_dir() => std::io::ErrorKind::IsADirectory.into(),
        _ => return Ok(()),
    };
    Err(Failure::File { action: "write", path: path.to_owned(), source: problem })
}

/// Writes a bundle; a file under its final name is complete. Returns how many runs it contains.
pub(crate) fn write(
    store: &Store,
    header: &BundleHeader,
    runs: &[RunId],
    path: &Path,
) -> Result<u64, Failure> {
    let mut aside = path.to_owned().into_os_string();
    aside.push(".part");
    let aside = PathBuf::from(aside);
    let failed = |source| Failure::File { action: "write", path: path.to_owned(), source };
    let file = std::fs::File::create(&aside).map_err(failed)?;
    let mut to = std::io::BufWriter::new(file);
    let count = store.write_bundle(header, runs, &mut to)?;
    let file = to.into_inner().map_err(|error| failed(error.into_error()))?;
    file.sync_all().and_then(|()| std::fs::rename(&aside, path)).map_err(failed)?;
    Ok(count)
}
