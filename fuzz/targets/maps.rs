//! The text of `/proc/PID/maps`.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = image::maps::parse(text);
});
