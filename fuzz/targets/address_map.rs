//! A clone's address map; what was read can be written and read again.
#![no_main]
use emit::AddressMap;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(map) = AddressMap::from_bytes(bytes) {
        assert_eq!(AddressMap::from_bytes(&map.to_bytes()).unwrap().entries(), map.entries());
        let _ = map.original_of_interior(map.fragments().start());
    }
});
