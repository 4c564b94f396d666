//! A FIRST test in a program without a test harness: it is run again with its own arguments.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--list") {
        // How runners list the tests; ignored ones are listed separately.
        if !words.iter().any(|word| word == "--ignored") {
            println!("program: test");
        }
        return;
    }
    first::test()
        .run(|env| {
            std::fs::write(env.path("a"), "a").unwrap();
            first::crash_point("written");
            std::fs::rename(env.path("a"), env.path("b")).unwrap();
            first::crash_point("renamed");
        })
        .verify(|env, crash| {
            assert_eq!(env.path("b").exists(), crash.label() == "renamed");
            assert_ne!(env.path("a").exists(), env.path("b").exists());
        });
}
