#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ferroce_suites::fuzz::vfio_user_server(data));
