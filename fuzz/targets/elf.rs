//! A process with one module in two mappings: its headers, dynamic section, symbols, relocations, frame table.
#![no_main]
use addr::Avma;
use image::{Image, MainHint, NoFiles, maps, runtime};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let end = 0x40_1000 + bytes.len().max(1).next_multiple_of(4096);
    let part = |from: usize, to: usize| format!("{from:x}-{to:x} r-xp {:08x} fe:00 1 /program\n", from - 0x40_0000);
    let maps = maps::parse(&(part(0x40_0000, 0x40_1000) + &part(0x40_1000, end))).unwrap();
    let hint = MainHint { exe_path: Some("/program".to_owned()), ..MainHint::default() };
    let memory = (Avma(0x40_0000), bytes);
    if let Ok(image) = Image::load(&maps, &memory, &NoFiles, &hint) {
        let _ = runtime::detect(&image, &memory);
    }
});
