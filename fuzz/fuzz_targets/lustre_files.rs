#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bedplate_fuzz::run("lustre_files", data));
