#[test]
fn one() {}

#[test]
fn two() {
    println!("seen only with --nocapture");
}

mod deep {
    #[test]
    fn three() {}
}
