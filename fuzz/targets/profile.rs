//! Profile files.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(profile) = profile::Profile::read(bytes) {
        let text = profile.to_string();
        assert_eq!(profile::Profile::read(text.as_bytes()).as_ref(), Ok(&profile));
        for module in profile.modules.keys() {
            let _ = profile::fdata(&profile, module);
        }
        let mut twice = profile.clone();
        twice.merge(profile);
        twice.tame();
        twice.shrink_to(text.len() / 2);
        assert!(twice.functions() == 0 || twice.to_string().len() <= text.len() / 2);
    }
});
