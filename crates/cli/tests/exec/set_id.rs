//! Files that run with the rights of their owner or group: what a confined command cannot create, what is
//! listed, and programs that need the same bits on directories and work. The attempts are in `further_attempts`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use crate::common::called;
use crate::denied::{Lab, NOBODY};

const ALL: [(u32, bool); 4] = [(0, false), (NOBODY, false), (0, true), (NOBODY, true)];

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// The names of the files that were listed because of their bit.
fn listed(json: &Value) -> Vec<&str> {
    let files = json["sandbox"]["leftForHost"]["files"].as_array().into_iter().flatten();
    let set_id = files.filter(|file| file["kind"] == "set_id_file");
    set_id.map(|file| file["path"].as_str().unwrap().rsplit('/').next().unwrap()).collect()
}

#[test]
fn directories_may_have_set_id_bits_and_are_not_listed() {
    for (user, landlock) in ALL {
        let Some(lab) = Lab::new(user, landlock) else { return };
        let json = lab.json(
            "set -e; git init -q --shared=group sub; git init -q --bare --shared=all bare; mkdir -m 2775 made; \
             mkdir later; chmod g+s later; mkdir later/below; chmod -R 1777 later/below; cp -a made copied; echo x > made/file",
        );
        assert_eq!((&json["exitCode"], listed(&json)), (&0.into(), vec![]), "{json}");
        for name in ["sub/.git/objects", "bare/refs", "made", "later", "copied"] {
            assert_eq!(mode(&lab.project().join(name)) & 0o7000, 0o2000, "{name}");
        }
    }
}

#[test]
fn a_file_with_the_bit_of_its_group_is_listed() {
    for (user, landlock) in ALL {
        let Some(lab) = Lab::new(user, landlock) else { return };
        let json =
            lab.json("mkdir -p target; cp /usr/bin/true target/tool; chmod 2755 target/tool");
        assert_eq!(listed(&json), ["tool"], "{json}");
        assert_eq!(mode(&lab.project().join("target/tool")), 0o2755);
        let json = lab.json("chmod g-s target/tool; cp /usr/bin/true other; chmod 755 other");
        assert_eq!(listed(&json), Vec::<&str>::new(), "{json}");
        let said = lab.exec(&["--quarantine"], "chmod 2755 other");
        assert_eq!(said.code, 0, "{}", said.snapshot());
        let line = format!("moved aside: set-ID file {}", lab.project().join("other").display());
        assert!(said.stderr.contains(&line), "{}", said.snapshot());
        assert_eq!(mode(&lab.project().join("other.quarantined")), 0o755);
    }
}

/// As root `tar` keeps the modes of an archive, which fails here; every file is extracted nevertheless. Other users'
/// `tar` drops the bit by itself.
#[test]
fn an_archive_with_such_a_program_is_extracted_without_the_bit() {
    for (user, landlock) in ALL {
        let Some(lab) = Lab::new(user, landlock) else { return };
        let pack = "mkdir from; cp /usr/bin/true from/tool; chmod 4755 from/tool; echo x > from/z; \
                    tar -cf a.tar from/tool from/z && rm -r from";
        let packed = called(lab.as_user("sh").args(["-c", pack]));
        assert_eq!(packed.code, 0, "{}", packed.snapshot());
        let json = lab.json("tar -xf a.tar");
        let tool = mode(&lab.project().join("from/tool"));
        // At the Landlock level of these tests every user appears as root inside.
        if user == 0 || landlock {
            assert_eq!(json["exitCode"], 2, "{json}");
            let said = json["stderr"].as_str().unwrap();
            assert!(said.contains("Cannot change mode to rwsr-xr-x"), "{json}");
            assert_eq!(tool & 0o7000, 0, "{json}");
        } else {
            assert_eq!((&json["exitCode"], tool), (&0.into(), 0o755), "{json}");
        }
        assert_eq!(std::fs::read_to_string(lab.project().join("from/z")).unwrap(), "x\n");
        let json = lab.json("tar -xf a.tar --no-same-permissions; cp -r from copied");
        assert_eq!(json["exitCode"], 0, "{json}");
    }
}
