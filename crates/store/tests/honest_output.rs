//! Output of real tools has no secrets and passes the redactor unchanged.

use std::path::{Path, PathBuf};

use retake_store::redact::Redactor;

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("fixtures") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

#[test]
fn recorded_output_of_real_tools_passes_unchanged() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let redactor = Redactor::shapes();
    let mut found = Vec::new();
    for directory in ["../effects/tests/fixtures", "../effects/tests/samples", "../agent/tests"] {
        files(&here.join(directory), &mut found);
    }
    // Output of package managers and compilers: hashes, URLs, identifiers.
    found.push(here.join("../../Cargo.lock"));
    assert!(found.len() > 100, "{} files", found.len());
    for path in found {
        let bytes = std::fs::read(&path).expect("a file");
        let mut stream = redactor.stream();
        stream.push(&bytes, &mut |_| {});
        stream.finish(&mut |_| {});
        assert!(stream.redactions().is_empty(), "{}: {:?}", path.display(), stream.redactions());
    }
}
