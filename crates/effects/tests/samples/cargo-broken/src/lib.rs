#[cfg(test)]
mod tests {
    #[test]
    fn does_not_compile() {
        let n: i32 = "text";
    }
}
