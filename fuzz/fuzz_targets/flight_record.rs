#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bedplate_fuzz::run("flight_record", data));
