//! Hands libFuzzer's input to the target of a name. The targets live in `crates/dev/fuzzing`.

use bedplate_fuzzing::TARGETS;

pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("the target exists");
    (target.run)(data);
}
