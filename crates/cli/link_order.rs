//! The order of functions in the program: those that a start runs come first, side by side.
//!
//! `start-up-order.txt` names them, in the order in which a start reaches them, each after the crate whose object has
//! it. `cargo xtask start-up-order` writes it from runs under valgrind. A name has no hash in it, so that the
//! file outlives other versions of the compiler and of dependencies; what it names in vain is skipped.

use std::collections::HashMap;

/// A generic function may be there many times under one name; more than this are not all of a start.
#[allow(dead_code, reason = "the tool that writes the list needs the names only")]
const INSTANCES: usize = 12;

/// The name of a function without what changes from build to build.
pub(crate) fn stable_name(symbol: &str) -> String {
    // A part that was split off by the optimiser, such as `.llvm.6050311513103306195`.
    let symbol = symbol.split(".llvm.").next().unwrap_or_default();
    if let Some((name, _hash)) = symbol.split_once("17h").filter(|_| symbol.starts_with("_ZN")) {
        return name.to_owned();
    }
    if !symbol.starts_with("_R") {
        return symbol.to_owned();
    }
    // `Cs…_` tells crates of one name apart.
    let mut pieces = symbol.split("Cs");
    let mut name = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        match piece.split_once('_') {
            Some((hash, rest))
                if hash.len() > 8 && hash.bytes().all(|b| b.is_ascii_alphanumeric()) =>
            {
                name = name + "Cs_" + rest;
            }
            _ => name = name + "Cs" + piece,
        }
    }
    name
}

/// The crate that an object was made from, by the file name that the compiler gives it:
/// `libNAME-HASH.rlib`, `PROGRAM-HASH.NAME-HASH.…rcgu.o`, or one of the program's own.
pub(crate) fn crate_of(object: &str) -> Option<&str> {
    let file = object.rsplit('/').next()?;
    if let Some(library) = file.strip_prefix("lib") {
        return library.split(".rlib").next()?.rsplit_once('-').map(|(name, _hash)| name);
    }
    let (program, rest) = file.split_once('.')?;
    match rest.split('.').next()?.rsplit_once('-') {
        Some((name, hash)) if hash.len() == 16 => Some(name),
        _ => program.rsplit_once('-').map(|(name, _hash)| name),
    }
}

/// The symbols to be placed first, from the list and from what the objects define: pairs of object and symbol.
#[allow(dead_code, reason = "the tool that writes the list needs the names only")]
pub(crate) fn order<'a>(
    list: &str,
    defined: impl Iterator<Item = (&'a str, &'a str)>,
) -> Vec<&'a str> {
    let places: HashMap<(&str, &str), usize> = (list.lines().enumerate())
        .filter_map(|(place, line)| Some((line.split_once(' ')?, place)))
        .collect();
    let mut found: Vec<Vec<&str>> = vec![Vec::new(); list.lines().count()];
    for (object, symbol) in defined {
        let name = stable_name(symbol);
        let place = crate_of(object).and_then(|of| places.get(&(of, name.as_str())));
        if let Some(place) = place {
            found[*place].push(symbol);
        }
    }
    found.retain(|symbols| symbols.len() <= INSTANCES);
    found.into_iter().flatten().collect()
}
