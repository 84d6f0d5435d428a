/* SPDX-License-Identifier: Apache-2.0
 *
 * The picture of a mask in characters: a coarse grid with exact counts, so that what is printed as
 * whole is whole, and what has one cell is not printed as empty.
 */
#include "mask/mask_picture.h"

enum { COLUMNS_DEFAULT = 64, COLUMNS_MAX = 1000 };

/* A character is about twice as high as wide, so a picture has half as many rows as a square would
 * need; a mask that fits is drawn cell by cell instead. */
static int32_t text_rows(const ffa_mask_shape *shape, int32_t columns)
{
    int64_t rows = shape->seqlen_q;

    if (shape->seqlen_k > columns || shape->seqlen_q > columns)
        rows = (int64_t)columns * shape->seqlen_q / shape->seqlen_k / 2;
    if (rows > 2 * (int64_t)columns)
        rows = 2 * (int64_t)columns;
    if (rows > shape->seqlen_q)
        rows = shape->seqlen_q;
    return rows > 1 ? (int32_t)rows : 1;
}

ffa_status ffa_mask_text_picture(const ffa_mask *mask, int32_t head, int32_t columns, char **out,
                                 ffa_error *err)
{
    struct text text = { 0 };
    struct grid grid = { 0 };
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    FFA_TRY(picture_check(mask, head, err));
    columns = columns ? columns : COLUMNS_DEFAULT;
    if (columns < 1 || columns > COLUMNS_MAX)
        return error_fail(err, FFA_INVALID, 0, "columns is %d, not in [0, %d]", columns,
                          COLUMNS_MAX);

    grid.columns = mask->shape.seqlen_k < columns ? (int32_t)mask->shape.seqlen_k : columns;
    grid.rows = text_rows(&mask->shape, columns);
    FFA_TRY(grid_build(&grid, mask, head, err));
    for (int32_t row = 0; row < grid.rows; row++) {
        for (int32_t column = 0; column < grid.columns; column++) {
            int64_t count = grid.cells[(int64_t)row * grid.columns + column];

            text_add(&text, "%c",
                     count == 0                                                  ? '.'
                     : count == grid_cell_size(&grid, &mask->shape, row, column) ? '#'
                                                                                 : '+');
        }
        text_add(&text, "\n");
    }
    *out = text_take(&text);
    if (!*out)
        rc = error_nomem(err, "the picture");
out:
    grid_finish(&grid);
    text_finish(&text);
    return rc;
}
