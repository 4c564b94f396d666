//! `retake matrix` as its users meet it: real repositories, real runs, the real program.

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod browsers;
mod env;
mod mistakes;
mod running;
mod stopping;
