//! A crate whose tests go every way there is.

/// ```
/// assert_eq!(sample::twice(2), 4);
/// ```
///
/// ```ignore
/// nonsense
/// ```
///
/// ```should_panic
/// panic!("as expected");
/// ```
pub fn twice(n: i32) -> i32 {
    n * 2
}

#[cfg(test)]
mod tests {
    #[test]
    fn passes() {
        assert_eq!(super::twice(1), 2);
    }

    #[test]
    #[ignore = "takes too long"]
    fn slow() {}

    #[test]
    #[ignore]
    fn left_out() {}

    #[test]
    #[should_panic]
    fn panics_as_it_should() {
        panic!("good");
    }

    #[test]
    #[cfg(feature = "failing")]
    fn fails() {
        // Another tool's summary, and one of this tool's own, neither of which is a result.
        println!("test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s");
        println!("====== 3 failed, 9 passed in 0.12s ======");
        println!("Tests:       1 failed, 4 passed, 5 total");
        assert_eq!(1, 2, "numbers differ");
    }

    #[test]
    #[should_panic(expected = "something else")]
    #[cfg(feature = "failing")]
    fn panics_wrongly() {
        panic!("bad");
    }

    #[test]
    #[cfg(feature = "failing")]
    fn returns_an_error() -> Result<(), String> {
        Err("no luck".into())
    }
}
