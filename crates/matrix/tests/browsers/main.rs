//! Browsers from a loopback mirror that serves real archives.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod mirror;

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mirror::{DIRECTORY, Mirror, PLATFORM, Zip, browser_zip, file};
use retake_matrix::browsers::{
    Addresses, Browser, BrowserError, BrowserRequest, Browsers, Origin, Progress, UnpackError,
};
use zip::write::SimpleFileOptions;

const V120: &str = "120.0.6099.109";

struct Test {
    mirror: Mirror,
    temp: tempfile::TempDir,
}

impl Test {
    fn new() -> Self {
        let test = Self { mirror: Mirror::start(), temp: tempfile::tempdir().unwrap() };
        test.mirror.index(&["119.0.6045.105", V120, "121.0.6167.85"]);
        test.mirror.archive(V120, browser_zip(V120, 600_000, |_| {}));
        test
    }

    fn browsers(&self) -> Browsers {
        let addresses = Addresses {
            index: Some(format!("{}/index", self.mirror.url)),
            downloads: Some(format!("{}/dl", self.mirror.url)),
        };
        Browsers::new(&self.root(), &[self.temp.path().join("others")], addresses)
    }

    fn root(&self) -> PathBuf {
        self.temp.path().join("cache")
    }

    fn ensure(&self, request: &str) -> Result<Browser, BrowserError> {
        let request: BrowserRequest = request.parse().unwrap();
        self.browsers().ensure(&request, &BTreeMap::new(), &mut |_| ControlFlow::Continue(()))
    }

    /// Everything in the cache except locks.
    fn cached(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root().join("chrome")).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .map(|e| e.file_name().into_string().unwrap())
            .filter(|n| !n.ends_with(".lock"))
            .collect();
        names.sort();
        names
    }

    fn refused(&self, more: impl FnOnce(&mut Zip)) -> UnpackError {
        self.mirror.archive(V120, browser_zip(V120, 10, more));
        match self.ensure(V120) {
            Err(BrowserError::Archive { error, .. }) => {
                assert_eq!(self.cached(), [""; 0], "nothing is kept");
                error
            }
            other => panic!("{other:?}"),
        }
    }
}

fn output(browser: &Browser) -> String {
    let output = std::process::Command::new(&browser.program).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn downloaded_once_and_then_cached() {
    let test = Test::new();
    let mut steps = Vec::new();
    let browser = test
        .browsers()
        .ensure(&V120.parse().unwrap(), &BTreeMap::new(), &mut |progress| {
            steps.push(progress);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!((browser.version.as_str(), browser.origin), (V120, Origin::Downloaded));
    assert_eq!(output(&browser), V120);
    let expected = format!("cache/chrome/{DIRECTORY}-{V120}/chrome-{PLATFORM}/chrome");
    assert!(browser.program.is_absolute() && browser.program.ends_with(expected));
    assert!(
        steps
            .iter()
            .any(|s| matches!(s, Progress::Downloading { done, total: Some(t) } if done == t))
    );
    assert!(
        steps.iter().any(|s| matches!(s, Progress::Unpacking { done, total } if done == total))
    );
    assert_eq!(test.cached(), [format!("{DIRECTORY}-{V120}")], "no archive is left");
    let receipt = test.browsers().cache().receipt(V120).unwrap();
    let archive = browser_zip(V120, 600_000, |_| {});
    assert_eq!(receipt.bytes, archive.len() as u64);
    assert_eq!(receipt.blake3.len(), 64);
    test.mirror.log();
    assert_eq!(test.ensure(V120).unwrap().origin, Origin::Cached);
    assert_eq!(test.mirror.log(), [], "nothing is asked for");
}

#[test]
fn an_existing_puppeteer_cache_is_used() {
    let test = Test::new();
    let place =
        test.temp.path().join(format!("others/chrome/{DIRECTORY}-114.0.5735.0/chrome-{PLATFORM}"));
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("chrome"), "#!/bin/sh\necho 114\n").unwrap();
    fs::set_permissions(place.join("chrome"), fs::Permissions::from_mode(0o755)).unwrap();
    let browser = test.ensure("114.0.5735.0").unwrap();
    assert_eq!((browser.origin, output(&browser).as_str()), (Origin::Cached, "114"));
    assert_eq!(test.mirror.log(), []);
}

#[test]
fn an_explicit_path_must_be_an_executable_file() {
    let test = Test::new();
    assert_eq!(test.ensure("/bin/sh").unwrap().program, Path::new("/bin/sh"));
    for (path, why) in [
        ("/no/such", "no such program"),
        ("/tmp/", "a directory"),
        ("/etc/passwd", "not executable"),
    ] {
        let error = test.ensure(path).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn milestones_and_channels_are_resolved_and_stay_pinned() {
    let test = Test::new();
    let resolve = |request: &str, pins: &[(&str, &str)]| {
        let pins = pins.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
        test.browsers().resolve(&request.parse().unwrap(), &pins)
    };
    assert_eq!(resolve("m120", &[]).unwrap(), V120);
    assert_eq!(resolve("stable", &[]).unwrap(), "121.0.6167.85");
    assert_eq!(resolve("m120", &[("m120", "120.0.6099.1")]).unwrap(), "120.0.6099.1");
    let error = resolve("m99", &[]).unwrap_err().to_string();
    assert_eq!(error, "the index has no milestone 99; it has 119 to 121");
    assert!(resolve("beta", &[]).unwrap_err().to_string().contains("Beta"));
    assert_eq!(test.ensure("m120").unwrap().version, V120);
}

#[test]
fn an_unknown_version_names_its_neighbours() {
    let test = Test::new();
    let error = test.ensure("120.0.6099.1").unwrap_err().to_string();
    assert!(
        error.contains("120.0.6099.1") && error.contains(&format!("119.0.6045.105, {V120}")),
        "{error}"
    );
    assert_eq!(test.cached(), [""; 0]);
}

#[test]
fn available_and_installed_browsers_are_listed() {
    let test = Test::new();
    test.ensure(V120).unwrap();
    let browsers = test.browsers();
    let list = |since: Option<&str>, latest| {
        let since = since.map(|text| text.parse().unwrap());
        let listed = browsers.index().list(since, latest, |v| browsers.cache().find(v)).unwrap();
        listed.into_iter().map(|l| (l.version, l.installed.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(list(None, None).len(), 3);
    assert_eq!(
        list(Some("m120"), None),
        [(V120.to_owned(), true), ("121.0.6167.85".into(), false)]
    );
    assert_eq!(list(Some("120.0.6099.110"), None).len(), 1);
    assert_eq!(list(None, Some(1)), [("121.0.6167.85".to_owned(), false)]);
}

#[test]
fn a_broken_transfer_is_resumed() {
    let test = Test::new();
    test.mirror.change(|state| state.cut = Some(200_000));
    let error = test.ensure(V120).unwrap_err();
    assert!(matches!(error, BrowserError::BrokenOff { got: 200_000, .. }), "{error}");
    test.mirror.change(|state| state.cut = None);
    test.mirror.log();
    assert_eq!(output(&test.ensure(V120).unwrap()), V120);
    assert_eq!(test.mirror.log()[0].1.as_deref(), Some("bytes=200000-"));
}

#[test]
fn a_download_restarts_if_the_archive_changed() {
    for server_forgets_ranges in [true, false] {
        let test = Test::new();
        test.mirror.change(|state| state.cut = Some(200_000));
        test.ensure(V120).unwrap_err();
        let other = browser_zip("new", 700_000, |_| {});
        test.mirror.archive(V120, other);
        test.mirror.change(|state| {
            state.cut = None;
            state.no_ranges = server_forgets_ranges;
            state.etag = "\"two\"".into();
        });
        assert_eq!(output(&test.ensure(V120).unwrap()), "new");
    }
}

#[test]
fn a_response_with_another_range_than_requested_is_not_used() {
    let test = Test::new();
    test.mirror.change(|state| state.cut = Some(200_000));
    test.ensure(V120).unwrap_err();
    test.mirror.change(|state| (state.cut, state.early) = (None, 1000));
    assert_eq!(output(&test.ensure(V120).unwrap()), V120);
}

#[test]
fn a_part_without_its_origin_or_too_long_is_begun_anew() {
    let test = Test::new();
    let part = test.root().join(format!("chrome/{V120}-chrome-{PLATFORM}.zip.part"));
    fs::create_dir_all(part.parent().unwrap()).unwrap();
    fs::write(&part, "rubbish").unwrap();
    assert_eq!(output(&test.ensure(V120).unwrap()), V120);

    let test = Test::new();
    test.mirror.change(|state| state.cut = Some(200_000));
    test.ensure(V120).unwrap_err();
    test.mirror.change(|state| state.cut = None);
    let part = test.root().join(format!("chrome/{V120}-chrome-{PLATFORM}.zip.part"));
    fs::OpenOptions::new().append(true).open(&part).unwrap().set_len(9_000_000).unwrap();
    assert_eq!(output(&test.ensure(V120).unwrap()), V120);
}

#[test]
fn a_truncated_archive_without_length_is_not_kept() {
    let test = Test::new();
    test.mirror.change(|state| (state.cut, state.no_length) = (Some(200_000), true));
    let error = test.ensure(V120).unwrap_err();
    assert!(
        matches!(error, BrowserError::Archive { error: UnpackError::Damaged(_), .. }),
        "{error}"
    );
    assert_eq!(test.cached(), [""; 0]);
    test.mirror.change(|state| state.cut = None);
    assert_eq!(output(&test.ensure(V120).unwrap()), V120);
}

#[test]
fn an_interrupt_is_heeded_while_the_server_is_silent_and_resumed_later() {
    let test = Test::new();
    test.mirror.change(|state| state.stall = Some(100_000));
    let mut silent = 0;
    let error = test
        .browsers()
        .ensure(&V120.parse().unwrap(), &BTreeMap::new(), &mut |progress| {
            silent += usize::from(matches!(progress, Progress::Downloading { done: 100_000, .. }));
            if silent >= 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap_err();
    assert!(matches!(error, BrowserError::Interrupted { .. }), "{error}");
    test.mirror.change(|state| state.stall = None);
    test.mirror.log();
    assert_eq!(output(&test.ensure(V120).unwrap()), V120);
    assert_eq!(test.mirror.log()[0].1.as_deref(), Some("bytes=100000-"));
}

#[test]
fn an_interrupted_unpacking_leaves_nothing_broken() {
    let test = Test::new();
    let error = test
        .browsers()
        .ensure(&V120.parse().unwrap(), &BTreeMap::new(), &mut |progress| {
            if matches!(progress, Progress::Unpacking { .. }) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .unwrap_err();
    assert!(matches!(error, BrowserError::Interrupted { .. }), "{error}");
    assert!(test.browsers().cache().find(V120).is_none());
    // The remains of a killed process: a partly unpacked directory, and one without its program.
    let half = test.root().join(format!("chrome/.{DIRECTORY}-{V120}.new/chrome-{PLATFORM}"));
    fs::create_dir_all(&half).unwrap();
    fs::write(half.join("chrome"), "half").unwrap();
    fs::create_dir_all(test.root().join(format!("chrome/{DIRECTORY}-{V120}/chrome-{PLATFORM}")))
        .unwrap();
    assert_eq!(output(&test.ensure(V120).unwrap()), V120);
    assert_eq!(test.cached(), [format!("{DIRECTORY}-{V120}")]);
}

#[test]
fn two_at_once_download_once() {
    let test = Test::new();
    let origins: Vec<Origin> = std::thread::scope(|scope| {
        let both: Vec<_> =
            (0..4).map(|_| scope.spawn(|| test.ensure(V120).unwrap().origin)).collect();
        both.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(origins.iter().filter(|o| **o == Origin::Downloaded).count(), 1);
    assert_eq!(test.mirror.log().len(), 1);
}

#[test]
fn modes_are_kept_and_dangerous_bits_are_not() {
    let test = Test::new();
    let directory = format!("chrome-{PLATFORM}");
    let zip = browser_zip(V120, 10, |zip| {
        file(zip, &format!("{directory}/crashpad"), b"x", 0o755);
        file(zip, &format!("{directory}/sandbox"), b"x", 0o4755);
        file(zip, &format!("{directory}/plain"), b"x", 0o644);
        zip.add_symlink(format!("{directory}/link"), "chrome", SimpleFileOptions::default())
            .unwrap();
    });
    test.mirror.archive(V120, zip);
    let browser = test.ensure(V120).unwrap();
    let directory = browser.program.parent().unwrap();
    let mode =
        |name: &str| fs::metadata(directory.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("crashpad"), mode("sandbox"), mode("plain")), (0o755, 0o755, 0o644));
    assert_eq!(fs::read_link(directory.join("link")).unwrap(), Path::new("chrome"));
}

#[test]
fn archives_with_paths_outside_their_directory_are_refused() {
    let test = Test::new();
    let outside = test.temp.path().join("outside");
    let link = |zip: &mut Zip, name: &str, target: &str| {
        zip.add_symlink(name, target, SimpleFileOptions::default()).unwrap();
    };
    let escapes = |error: UnpackError| {
        assert!(
            matches!(error, UnpackError::Escapes(_) | UnpackError::LinkEscapes { .. }),
            "{error}"
        );
    };
    for name in ["../outside", "a/../../outside", "/outside", "a\\..\\outside", ".."] {
        escapes(test.refused(|zip| file(zip, name, b"x", 0o644)));
    }
    escapes(test.refused(|zip| link(zip, "l", "/etc/passwd")));
    escapes(test.refused(|zip| link(zip, "l", "../../outside")));
    escapes(test.refused(|zip| link(zip, "l", "nowhere")));
    // Its text is harmless, but it leads out through another link.
    escapes(test.refused(|zip| {
        link(zip, "here", ".");
        link(zip, "out", "here/../..");
    }));
    let conflict = test.refused(|zip| {
        link(zip, "dir", ".");
        file(zip, "dir/x", b"x", 0o644);
    });
    assert!(matches!(conflict, UnpackError::Conflict(_)), "{conflict}");
    assert!(!outside.exists());
}

#[test]
fn bombs_are_refused() {
    let test = Test::new();
    let zeros = vec![0; 40 << 20];
    let error = test.refused(|zip| file(zip, "zeros", &zeros, 0o644));
    assert!(matches!(error, UnpackError::TooLarge { .. }), "{error}");
    // The same with a wrong size, patched in the local header and the central directory.
    let mut bytes = browser_zip(V120, 10, |zip| file(zip, "zeros", &zeros, 0o644));
    let real = (40u32 << 20).to_le_bytes();
    let places: Vec<usize> = (0..bytes.len() - 4).filter(|&i| bytes[i..i + 4] == real).collect();
    assert!(!places.is_empty());
    for place in places {
        bytes[place..place + 4].copy_from_slice(&100u32.to_le_bytes());
    }
    test.mirror.archive(V120, bytes);
    let error = test.ensure(V120).unwrap_err();
    assert!(matches!(error, BrowserError::Archive { .. }), "{error}");
    assert_eq!(test.cached(), [""; 0]);
    let error =
        test.refused(|zip| (0..60_000).for_each(|i| file(zip, &format!("f{i}"), b"", 0o644)));
    assert!(matches!(error, UnpackError::TooMany(_)), "{error}");
}

#[test]
fn an_archive_without_a_browser_is_refused() {
    let test = Test::new();
    let mut zip = Zip::new(std::io::Cursor::new(Vec::new()));
    file(&mut zip, "readme", b"x", 0o644);
    test.mirror.archive(V120, zip.finish().unwrap().into_inner());
    let error = test.ensure(V120).unwrap_err();
    assert!(
        matches!(error, BrowserError::Archive { error: UnpackError::NoProgram(_), .. }),
        "{error}"
    );
    test.mirror.archive(V120, b"<html>not found</html>".to_vec());
    let error = test.ensure(V120).unwrap_err();
    assert!(error.to_string().contains("damaged"), "{error}");
    assert_eq!(test.cached(), [""; 0]);
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let test = Test::new();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", gone.local_addr().unwrap());
    drop(gone);
    let addresses = Addresses { index: Some(url.clone()), downloads: Some(url.clone()) };
    let browsers = Browsers::new(&test.root(), &[], addresses);
    for request in [V120, "stable"] {
        let error = browsers
            .ensure(&request.parse().unwrap(), &BTreeMap::new(), &mut |_| ControlFlow::Continue(()))
            .unwrap_err();
        assert!(
            matches!(&error, BrowserError::Unreachable { url: u, .. } if u.starts_with(&url)),
            "{error}"
        );
    }
}

#[test]
fn cleaning_removes_browsers_and_partial_downloads_and_nothing_else() {
    let test = Test::new();
    test.ensure(V120).unwrap();
    let chrome = test.root().join("chrome");
    fs::write(chrome.join(".metadata"), "{}").unwrap();
    fs::write(chrome.join(format!("121.0.6167.85-chrome-{PLATFORM}.zip.part")), "half").unwrap();
    fs::create_dir(chrome.join("mine")).unwrap();
    assert_eq!(test.browsers().cache().versions(), [V120]);
    let cleaned = test.browsers().cache().clean().unwrap();
    assert_eq!(cleaned.versions, [V120]);
    assert!(cleaned.bytes > 600_000);
    let mut left: Vec<_> = fs::read_dir(&chrome).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [".metadata", "mine"]);
}
