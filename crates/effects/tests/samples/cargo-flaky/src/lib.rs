#[cfg(test)]
mod tests {
    #[test]
    fn passes() {}

    #[test]
    fn passes_the_second_time() {
        let attempt = std::env::var("NEXTEST_ATTEMPT").unwrap_or_default();
        assert_ne!(attempt, "1", "first attempt fails");
    }

    #[test]
    fn always_fails() {
        println!("test result: FAILED. 3 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out");
        panic!("always");
    }

    #[test]
    fn hangs() {
        std::thread::sleep(std::time::Duration::from_secs(60));
    }

    #[test]
    fn aborts() {
        std::process::abort();
    }

    #[test]
    #[ignore]
    fn left_out() {}
}
