// The charts' style sheet, for every Plotly figure of the page.

installStyle(STYLE);
