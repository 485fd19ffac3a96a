//! Capture files, and rebuilds from them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = engine::replay_bytes(bytes, "a capture".as_ref(), &engine::Again::default());
});
