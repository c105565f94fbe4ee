#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bedplate_fuzz::run("node_files", data));
