//! What holds for every layout, whatever its bytes are.

use ferroce_firmware_iface::layout::{Layout, ValueTooWide, read_field, view, view_mut};
use ferroce_firmware_iface::layouts::{Cqc, CreateQpIn, Eqc, Mkc, Qpc, RoceAddrLayout};
use proptest::prelude::*;

/// Bits of `bytes` that belong to a field, one by one from the table.
fn bits_of_fields<T: Layout>(bytes: &[u8]) -> Vec<u8> {
    fn collect(info: &ferroce_firmware_iface::layout::LayoutInfo, from: &[u8], to: &mut [u8]) {
        for field in info.fields {
            for i in 0..field.count {
                let start = field.bit_offset as usize + (i * field.bit_width) as usize;
                if let Some(nested) = field.nested {
                    let at = start / 8..start / 8 + nested.bytes;
                    collect(nested, &from[at.clone()], &mut to[at]);
                    continue;
                }
                for bit in start..start + field.bit_width as usize {
                    to[bit / 8] |= from[bit / 8] & (0x80 >> (bit % 8));
                }
            }
        }
    }
    let mut out = vec![0; bytes.len()];
    collect(T::INFO, bytes, &mut out);
    out
}

/// A bit is either a field's or reserved, and `reserved_bit_set` finds the first of those that is set.
fn fields_and_reserved_bits_share_all_bits<T: Layout>(bytes: &[u8]) {
    let bytes = &bytes[..T::INFO.bytes];
    let layout: &T = view(bytes).unwrap();
    let fields = bits_of_fields::<T>(bytes);
    let first = bytes
        .iter()
        .zip(&fields)
        .enumerate()
        .find_map(|(i, (all, known))| {
            let reserved = all & !known;
            (reserved != 0).then(|| i as u32 * 8 + reserved.leading_zeros())
        });
    assert_eq!(layout.reserved_bit_set(), first, "{}", T::INFO.name);
    assert_eq!(view::<T>(&fields).unwrap().reserved_bit_set(), None);
}

proptest! {
    #[test]
    fn a_bit_is_a_fields_or_reserved(bytes in proptest::collection::vec(any::<u8>(), 512)) {
        fields_and_reserved_bits_share_all_bits::<Qpc>(&bytes);
        fields_and_reserved_bits_share_all_bits::<Cqc>(&bytes);
        fields_and_reserved_bits_share_all_bits::<Eqc>(&bytes);
        fields_and_reserved_bits_share_all_bits::<Mkc>(&bytes);
        fields_and_reserved_bits_share_all_bits::<CreateQpIn>(&bytes);
        fields_and_reserved_bits_share_all_bits::<RoceAddrLayout>(&bytes);
    }

    #[test]
    fn a_setter_changes_its_field_and_nothing_else(bytes in any::<[u8; 232]>(), qpn: u32, iova: u64, on: bool) {
        let mut changed = bytes;
        let qpc: &mut Qpc = view_mut(&mut changed).unwrap();
        let fits = qpn < 1 << 24;
        let set = qpc.set_remote_qpn(qpn);
        prop_assert_eq!(set.is_ok(), fits);
        if let Err(error) = set {
            let named = ValueTooWide { layout: "qpc", field: "remote_qpn", value: qpn.into(), bits: 24 };
            prop_assert_eq!(error, named);
            prop_assert_eq!(changed, bytes, "a value that is refused changes nothing");
            return Ok(());
        }
        qpc.set_dbr_addr(iova);
        qpc.set_rwe(on);
        prop_assert_eq!((qpc.remote_qpn(), qpc.dbr_addr(), qpc.rwe()), (qpn, iova, on));
        for field in Qpc::INFO.fields {
            if !["remote_qpn", "dbr_addr", "rwe"].contains(&field.name) {
                prop_assert_eq!(read_field(&changed, field, 0), read_field(&bytes, field, 0), "{}", field.name);
            }
        }
    }

    #[test]
    fn too_few_bytes_are_no_layout(len in 0usize..232) {
        prop_assert!(view::<Qpc>(&vec![0xff; len]).is_none());
    }
}
