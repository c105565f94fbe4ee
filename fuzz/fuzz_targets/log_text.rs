#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bedplate_fuzz::run("log_text", data));
