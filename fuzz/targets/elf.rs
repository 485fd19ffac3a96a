//! A process with one module: its headers, dynamic section, symbols, relocations, frame table.
#![no_main]
use addr::Avma;
use image::{Image, MainHint, NoFiles, maps, runtime};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let end = 0x40_0000 + bytes.len().next_multiple_of(4096);
    let maps = maps::parse(&format!("400000-{end:x} r-xp 00000000 fe:00 1 /program\n")).unwrap();
    let hint = MainHint { exe_path: Some("/program".to_owned()), ..MainHint::default() };
    let memory = (Avma(0x40_0000), bytes);
    if let Ok(image) = Image::load(&maps, &memory, &NoFiles, &hint) {
        let _ = runtime::detect(&image, &memory);
    }
});
