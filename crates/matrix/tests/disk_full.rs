//! A disk that fills up during a download or during unpacking. Alone in its process, because the
//! file size limit that simulates a full disk applies to the whole process.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

#[path = "browsers/mirror.rs"]
mod mirror;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use mirror::{DIRECTORY, Mirror, PLATFORM, browser_zip, file};
use retake_matrix::browsers::{Addresses, BrowserError, Browsers};

const VERSION: &str = "120.0.6099.109";

fn limit_files(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: sets a limit and a disposition of this process only.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
    }
}

#[test]
fn a_full_disk_leaves_no_partial_browser_and_gives_advice() {
    let mirror = Mirror::start();
    mirror.index(&[VERSION]);
    let temp = tempfile::tempdir().unwrap();
    let addresses = Addresses {
        index: Some(format!("{}/index", mirror.url)),
        downloads: Some(format!("{}/dl", mirror.url)),
    };
    let browsers = Browsers::new(&temp.path().join("cache"), &[], addresses);
    let ensure = || {
        let request = VERSION.parse().unwrap();
        browsers.ensure(&request, &BTreeMap::new(), &mut |_| ControlFlow::Continue(()))
    };
    let left = || {
        let entries = std::fs::read_dir(temp.path().join("cache/chrome")).unwrap();
        let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.ends_with(".lock")).collect::<Vec<_>>()
    };

    mirror.archive(VERSION, browser_zip(VERSION, 600_000, |_| {}));
    limit_files(300_000);
    let error = ensure().unwrap_err();
    assert!(matches!(error, BrowserError::DiskFull { .. }), "{error}");
    assert!(error.to_string().contains("the disk is full; nothing of 120.0.6099.109 was kept"));
    assert_eq!(left(), [""; 0], "in the download");

    // Small as an archive, but too large unpacked.
    let packed = browser_zip(VERSION, 10, |zip| {
        file(zip, &format!("chrome-{PLATFORM}/zeros"), &vec![0; 900_000], 0o644);
    });
    mirror.archive(VERSION, packed);
    mirror.change(|state| state.etag = "\"two\"".into());
    let error = ensure().unwrap_err();
    assert!(matches!(error, BrowserError::DiskFull { .. }), "{error}");
    assert_eq!(left(), [""; 0], "in the unpacking");

    limit_files(libc::RLIM_INFINITY);
    assert!(ensure().unwrap().program.is_file());
    assert_eq!(left(), [format!("{DIRECTORY}-{VERSION}")]);
    assert!(mirror.log().iter().all(|(_, range)| range.is_none()), "nothing was kept to resume");
}
