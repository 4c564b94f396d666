//! A counter that survives a crash.

use std::{fs, io, path::Path};

pub fn read(dir: &Path) -> io::Result<u64> {
    match fs::read_to_string(dir.join("count")) {
        Ok(text) => text.parse().map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

pub fn increment(dir: &Path) -> io::Result<u64> {
    let count = read(dir)? + 1;
    fs::write(dir.join("count.tmp"), count.to_string())?;
    first::crash_point("count: written");
    fs::rename(dir.join("count.tmp"), dir.join("count"))?;
    first::crash_point("count: in place");
    Ok(count)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_count_is_never_lost() {
        first::test()
            .jobs(2)
            .run(|env| {
                for n in 1..=3 {
                    assert_eq!(super::increment(&env.path("")).unwrap(), n);
                }
            })
            .verify(|env, crash| {
                let count = super::read(&env.path("")).unwrap();
                assert_eq!(count, crash.point_id() as u64 / 2);
            });
    }
}
